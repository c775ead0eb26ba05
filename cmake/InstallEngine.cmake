# Installs the engine for C++ users: the static library, its public headers and the package file that
# find_package(widestream) reads. A wheel carries none of it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(WS_CONFIG_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/widestream")

set_target_properties(engine PROPERTIES OUTPUT_NAME widestream_engine)
install(TARGETS engine EXPORT widestreamTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
# Public is what a header of the engine can be included as; anything named internal, and what only tests
# include, stays private.
install(DIRECTORY "${CMAKE_SOURCE_DIR}/engine" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/widestream"
  FILES_MATCHING PATTERN "*.h" PATTERN "*internal*" EXCLUDE PATTERN "*_test.h" EXCLUDE PATTERN "testing*" EXCLUDE PATTERN "temporary_folder.h" EXCLUDE)
install(EXPORT widestreamTargets NAMESPACE widestream:: DESTINATION "${WS_CONFIG_DIR}")
configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/widestreamConfig.cmake.in"
  "${CMAKE_BINARY_DIR}/widestreamConfig.cmake" INSTALL_DESTINATION "${WS_CONFIG_DIR}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/widestreamConfigVersion.cmake"
  VERSION "${PROJECT_VERSION}" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/widestreamConfig.cmake" "${CMAKE_BINARY_DIR}/widestreamConfigVersion.cmake"
  DESTINATION "${WS_CONFIG_DIR}")
install(FILES "${CMAKE_SOURCE_DIR}/LICENSE" "${CMAKE_SOURCE_DIR}/NOTICE"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/widestream")

# Reads Parquet for the engine; finds libarrow where it was built against it (the pyarrow wheel).
if(TARGET widestream_arrow)
  get_target_property(arrow_library PyArrow::arrow IMPORTED_LOCATION)
  get_filename_component(arrow_folder "${arrow_library}" DIRECTORY)
  set_target_properties(widestream_arrow PROPERTIES INSTALL_RPATH "${arrow_folder}")
  install(TARGETS widestream_arrow LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
